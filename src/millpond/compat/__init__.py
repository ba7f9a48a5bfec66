"""millpond with other packages, in one module each; the core imports none of them."""
