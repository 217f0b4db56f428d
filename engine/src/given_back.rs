//! Errors that give back what they could not use: a session, a block.
//!
//! Whoever is told to try again must still have the thing to try with. Both turn into
//! [`Error`](crate::Error) by `?` in functions that return it, which drops what was given back.

/// The traits of an error that gives something back: it reads like its reason.
macro_rules! speaks_as_its_reason {
    ($name:ident, $given:literal, $back:ident) => {
        impl<H: Hasher, D: Device, R: Runtime> std::fmt::Debug for $name<H, D, R> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("error", self.error())
                    .field($given, self.$back())
                    .finish_non_exhaustive()
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> std::fmt::Display for $name<H, D, R> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self.error(), f)
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> std::error::Error for $name<H, D, R> {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(self.error())
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> From<$name<H, D, R>> for Error {
            fn from(error: $name<H, D, R>) -> Self {
                error.into_error()
            }
        }
    };
}

pub(crate) use speaks_as_its_reason;
