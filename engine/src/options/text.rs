//! Options as text, for a configuration file, a command line or a binding to another language.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pleach_core::Hasher;
use pleach_io::IoMode;

use super::{Durability, Geometry, InvalidOption, Options};

impl Options {
    /// Sets options from `key=value` pairs, which white space or commas separate, such as `cache_mib=4096 history=128
    /// durability=periodic:100`. Keys are the names of this type's methods; switches are `true` or `false`, as is
    /// `small`, `durability` is `commit`, `none` or `periodic:` and milliseconds, `io` is `auto`, `uring` or
    /// `blocking`, `hasher` is `blake3` or `sha2-256`. [`Display`](fmt::Display) gives such a text.
    ///
    /// # Errors
    /// [`InvalidOption::Text`] names the first pair that is not understood.
    pub fn set(mut self, text: &str) -> Result<Self, InvalidOption> {
        let pairs = text.split([',', ' ', '\t', '\r', '\n']).filter(|pair| !pair.is_empty());
        for pair in pairs {
            let refused = |wanted| InvalidOption::Text { pair: pair.to_owned(), wanted };
            let (key, value) = pair.split_once('=').ok_or(refused("`key=value`"))?;
            self.set_one(key, value).map_err(refused)?;
        }
        Ok(self)
    }

    /// Sets one option; the error is the text that would be understood.
    fn set_one(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "create" => self.create = parsed(value, SWITCH)?,
            "read_only" => self.read_only = parsed(value, SWITCH)?,
            "cache_mib" => self.cache_bytes = mib(value)?,
            "threads" => self.threads = parsed(value, NUMBER)?,
            "in_flight" => self.in_flight = parsed(value, NUMBER)?,
            "durability" => {
                self.durability = match value.split_once(':') {
                    None if value == "commit" => Durability::Commit,
                    None if value == "none" => Durability::None,
                    Some(("periodic", ms)) => {
                        Durability::Periodic(Duration::from_millis(parsed(ms, NUMBER)?))
                    }
                    _ => return Err("`commit`, `none` or `periodic:` and milliseconds"),
                }
            }
            "io" => {
                self.io = match value {
                    "auto" => IoMode::Auto,
                    "uring" => IoMode::Uring,
                    "blocking" => IoMode::Blocking,
                    _ => return Err("`auto`, `uring` or `blocking`"),
                }
            }
            "direct" => self.direct = parsed(value, SWITCH)?,
            "log_limit_mib" => self.log_limit = Some(mib(value)?),
            "small" => {
                let small = parsed(value, SWITCH)?;
                self.geometry = if small { Geometry::small() } else { Geometry::default() };
            }
            "history" => self.history = Some(parsed(value, NUMBER)?),
            "undo_memory_mib" => self.undo_memory = Some(mib(value)?),
            "history_disk_mib" => self.history_disk = Some(mib(value)?),
            "kept_log_mib" => self.kept_log_mib = Some(parsed(value, NUMBER)?),
            "require_history" => self.require_history = parsed(value, SWITCH)?,
            "hasher" => {
                self.hasher = Some(Hasher::of_name(value).ok_or("`blake3` or `sha2-256`")?);
            }
            _ => return Err(NAMES),
        }
        Ok(())
    }
}

const NAMES: &str = "one of `create`, `read_only`, `cache_mib`, `threads`, `in_flight`, `durability`, `io`, `direct`, \
    `log_limit_mib`, `small`, `history`, `undo_memory_mib`, `history_disk_mib`, `kept_log_mib`, `require_history`, `hasher`";
const SWITCH: &str = "`true` or `false`";
const NUMBER: &str = "a number";

fn parsed<T: FromStr>(value: &str, wanted: &'static str) -> Result<T, &'static str> {
    value.parse().map_err(|_| wanted)
}

fn mib(value: &str) -> Result<u64, &'static str> {
    parsed::<u64>(value, NUMBER)?.checked_mul(1 << 20).ok_or("a smaller number")
}

/// The options as [`Options::set`] takes them, without the path, the geometry, and a hasher of an application.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { create, read_only, threads, in_flight, direct, require_history, .. } = self;
        write!(f, "create={create} read_only={read_only} cache_mib={}", self.cache_bytes >> 20)?;
        write!(f, " threads={threads} in_flight={in_flight} durability=")?;
        match self.durability {
            Durability::Commit => f.write_str("commit")?,
            Durability::Periodic(period) => write!(f, "periodic:{}", period.as_millis())?,
            Durability::None => f.write_str("none")?,
        }
        let io = match self.io {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Blocking => "blocking",
        };
        write!(f, " io={io} direct={direct} require_history={require_history}")?;
        let sizes = [
            ("log_limit_mib", self.log_limit.map(|bytes| bytes >> 20)),
            ("history", self.history),
            ("undo_memory_mib", self.undo_memory.map(|bytes| bytes >> 20)),
            ("history_disk_mib", self.history_disk.map(|bytes| bytes >> 20)),
            ("kept_log_mib", self.kept_log_mib),
        ];
        for (key, value) in sizes {
            if let Some(value) = value {
                write!(f, " {key}={value}")?;
            }
        }
        match self.hasher.filter(|hasher| hasher.id() != Hasher::APPLICATION) {
            Some(hasher) => write!(f, " hasher={}", hasher.name()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sets_what_methods_set_and_is_given_back() {
        let text = "create=true, cache_mib=512\tthreads=3 in_flight=32 durability=periodic:250\n\
                    io=blocking direct=false log_limit_mib=64 history=128 undo_memory_mib=1000 \
                    history_disk_mib=2000 kept_log_mib=20 require_history=true hasher=sha2-256";
        let set = Options::new("a").set(text).expect("understood");
        let made = Options::new("a")
            .create(true)
            .cache_mib(512)
            .threads(3)
            .in_flight(32)
            .durability(Durability::Periodic(Duration::from_millis(250)))
            .io(IoMode::Blocking)
            .direct(false)
            .log_limit_mib(64)
            .history(128)
            .undo_memory_mib(1000)
            .history_disk_mib(2000)
            .kept_log_mib(20)
            .require_history(true)
            .hasher(Hasher::SHA2_256);
        assert_eq!(format!("{set:?}"), format!("{made:?}"));
        for options in [set, Options::new("a"), Options::new("a").read_only(true)] {
            let again = Options::new("a").set(&options.to_string()).expect("understood");
            assert_eq!(format!("{again:?}"), format!("{options:?}"));
        }
    }

    /// The text of the error lists the names: each is known, and each printed option is listed.
    #[test]
    fn an_unknown_option_is_told_the_names() {
        let error = Options::new("a").set("cash_mib=1").expect_err("unknown").to_string();
        let names: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert_eq!(names.len(), 16, "{error}");
        for name in &names {
            let error =
                Options::new("a").set(&format!("{name}=?")).expect_err("no value").to_string();
            assert!(!error.contains("one of"), "{name}");
        }
        let printed = Options::new("a").history(1).log_limit_mib(64).to_string();
        for pair in printed.split(' ') {
            assert!(names.contains(&pair.split('=').next().expect("a name")), "{pair}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, wanted) in [
            ("cache_mib=64 cash_mib=1", "`cash_mib=1` is not understood: one of `create`,"),
            // Values of more than 64 bits of bytes became other numbers.
            ("cache_mib=18446744073709551615", "a smaller number"),
            ("log_limit_mib=17592186044416", "a smaller number"),
            ("cache_mib", "`key=value`"),
            ("threads=many", "a number"),
            ("direct=1", "`true` or `false`"),
            ("durability=sometimes", "`commit`, `none`"),
            ("durability=periodic:", "a number"),
            ("io=fast", "`auto`"),
            ("hasher=md5", "`blake3`"),
        ] {
            let error = Options::new("a").set(text).expect_err("not understood").to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
