"""Topics: what each is, reading one, and erasing records of one."""
