//! Small crates whose arrows are known.
