//! Fetching rich outputs over the runtime's proxy URL.
