"""Where measurements become records, and records become a panel, files and curves. No torch in here."""
