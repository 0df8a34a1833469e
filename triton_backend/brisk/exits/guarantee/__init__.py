"""What is promised of early answers, proved and watched."""
