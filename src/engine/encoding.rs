//! How facts are written down, the same in every engine.
