"""Several nodes on one catalog: joining, leases, who is alive, and what changed elsewhere."""
