"""Times on this machine that decide which caches pay."""
