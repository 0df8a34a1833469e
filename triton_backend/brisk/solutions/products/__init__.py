"""Matrix products, attention, recurrence, quantised arithmetic."""
