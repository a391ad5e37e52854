"""TLS of the doors: certificates, revocation, and the link above the transport."""
