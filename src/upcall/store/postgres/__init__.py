"""The log in a PostgreSQL database that many machines may share: `store` is the way in."""
