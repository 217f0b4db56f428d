//! Errors that return what the call could not use: a session, a block.
//!
//! A caller that is to try again needs the session or block. So these errors do not turn into [`Error`](crate::Error)
//! by `?`, which would drop it: `into_error` does.

/// Forwards the traits of an error that returns something to the error inside.
macro_rules! forward_error {
    ($name:ident, $given:literal, $back:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("error", self.error())
                    .field($given, self.$back())
                    .finish_non_exhaustive()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self.error(), f)
            }
        }

        impl std::error::Error for $name {}
    };
}

pub(crate) use forward_error;
