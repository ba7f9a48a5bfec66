"""millpond with other packages: one file each, none of which the core imports."""
