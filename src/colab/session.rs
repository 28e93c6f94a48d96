//! The one session of this process, and the backend over it.
