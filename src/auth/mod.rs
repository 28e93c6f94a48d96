//! Finding a bearer token for the service.
