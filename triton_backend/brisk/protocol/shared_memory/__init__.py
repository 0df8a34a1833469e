"""Memory that stub and worker share. Each side allocates in its own only."""
