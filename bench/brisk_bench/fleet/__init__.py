"""Hosts on one machine: network namespaces, shaped links, and transfers between them."""
