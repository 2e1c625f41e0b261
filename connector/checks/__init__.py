"""What `outbox check` looks at: one module per database, and what all of them share."""
