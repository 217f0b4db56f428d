//! Errors that return what the call could not use: a session, a block.

/// Forwards the traits of an error that returns something to the error inside. `?` turns it into that error, and drops
/// what it returns.
macro_rules! forward_error {
    ($name:ident) => {
        pleach_core::debug_is_text!($name);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self.error(), f)
            }
        }

        impl std::error::Error for $name {}

        impl From<$name> for crate::Error {
            fn from(error: $name) -> Self {
                error.into_error()
            }
        }
    };
}

pub(crate) use forward_error;
