//! What is tried again, how often, and after how long: one table for every tool and code.
