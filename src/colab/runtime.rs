//! Choosing the machine that cells run on.
