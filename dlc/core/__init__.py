"""What every part of dlc shares: errors, element types, targets, options, caches."""
