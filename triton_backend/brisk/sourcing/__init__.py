"""The courier: one process a host that fetches copies of published models and serves them."""
