"""The choice of which job runs next. Standard library only: testable in virtual time."""
