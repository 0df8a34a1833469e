"""The courier: one process per host that fetches copies of published models and serves them."""
