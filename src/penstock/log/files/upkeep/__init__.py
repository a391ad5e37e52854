"""Work on closed segments: sealing, erasing, verifying, moments for a backup."""
