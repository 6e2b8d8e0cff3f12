"""What every package uses: amounts, times, JSON values, DDL, a user's environment."""
