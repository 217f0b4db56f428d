//! Errors that give back what they could not use: a session, a block.
//!
//! Whoever is told to try again must still have the thing to try with. So neither turns into
//! [`Error`](crate::Error) by `?`, which would drop it: `into_error` does.

/// Forwards the traits of an error that gives something back to the error in it.
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
