"""Native code from loop functions and host programs."""
