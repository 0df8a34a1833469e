"""One worker's main thread; entry point ``worker.Worker``. Never waits for a lock."""
