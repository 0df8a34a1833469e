"""What is fetched next, from whom, and until when: pure functions of what is known."""
