"""The page of a server: static files, without a build step and without requests to other hosts."""
