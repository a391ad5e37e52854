"""Work in the background: retention, sealing, histories, the clock, snapshots."""
