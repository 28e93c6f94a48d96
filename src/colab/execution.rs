//! One cell: from the call to its outcome.
