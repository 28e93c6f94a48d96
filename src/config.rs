//! Settings: flags, then environment, then the config file, then defaults, in one place.
