"""Training of predictors and selectors (GATI, section 3.1)."""
