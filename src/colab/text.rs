//! Publishing what a cell printed exactly once.
