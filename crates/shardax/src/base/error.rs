//! The error type: a message with the values involved, the user's source line, and advice.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::{source, warning};

/// `Result` with shardax's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], named after the exception that JAX raises for the same mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes, ranks, axes, shardings or values that do not fit together (`ValueError`).
    Value,
    /// Dtypes, tree structures or kinds of argument that do not fit (`TypeError`).
    Type,
    /// A collective named an axis that is not bound (`NameError`).
    Name,
    /// An index or an axis out of range (`IndexError`).
    Index,
    /// Shardings in types that do not fit together (`ShardingTypeError`).
    Sharding,
    /// A dimension that the mesh does not divide (`IndivisibleError`, a `ValueError` in JAX).
    Indivisible,
    /// An array that was deleted or donated.
    Deleted,
    /// A traced array was used after, or outside of, the transformation that created it.
    Leak,
    /// Something that has no rule or is not supported (`NotImplementedError`).
    NotImplemented,
    /// The plugin could not be found, loaded or installed.
    Plugin,
    /// A check of the program failed (`JaxRuntimeError` of `checkify`).
    Check,
    /// A NaN or an infinity found by a debug check (`FloatingPointError`).
    FloatingPoint,
    /// The compiler or the device reported an error.
    Runtime,
    /// Other processes did not arrive in time.
    DeadlineExceeded,
}

/// An error, cheap to clone.
///
/// Its `Display` form has `kind: message`, then the user's source line, then the fix:
///
/// ```text
/// value error: add got incompatible shapes for broadcasting: float32[3] and float32[4]
///   at src/main.rs:12:17
///   help: shapes broadcast when each trailing dimension is equal or 1
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    location: Option<&'static Location<'static>>,
    help: Option<String>,
    /// Set while an array carries the error.
    unread: Option<Arc<Unread>>,
}

/// Emits a warning when it is dropped if nothing returned the error of a failed array, because the program then
/// continued without its result.
struct Unread {
    text: String,
    is_read: AtomicBool,
}

impl Drop for Unread {
    fn drop(&mut self) {
        if !*self.is_read.get_mut() && !std::thread::panicking() {
            warning::warn_anywhere(
                &format!("an operation failed, and nothing read its result: {}", self.text),
                "return or read the array, such as by `check()?` or `to_vec()?`, which returns the error",
            );
        }
    }
}

impl Error {
    /// Creates an error of `kind` with a message that contains the values involved.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner { kind, message: message.into(), location: None, help: None, unread: None }))
    }

    /// Adds advice for fixing the error.
    pub fn help(self, help: impl Into<String>) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        inner.help = Some(help.into());
        Error(Arc::new(inner))
    }

    /// Records the user's source line, unless one is recorded already. If the line is inside the library, it records
    /// the user's line that led there.
    pub fn at(self, location: &'static Location<'static>) -> Self {
        if self.0.location.is_some() {
            return self;
        }
        let mut inner = Arc::unwrap_or_clone(self.0);
        inner.location = source::user_line(location);
        Error(Arc::new(inner))
    }

    /// Removes the source line of a primitive's rule, so that the user's line can be recorded.
    pub(crate) fn anywhere(self) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        inner.location = None;
        Error(Arc::new(inner))
    }

    /// Marks the error as carried by an array that nothing has read.
    pub(crate) fn carried(self) -> Self {
        if let Some(unread) = &self.0.unread {
            unread.is_read.store(false, Relaxed);
            return self;
        }
        let text = self.to_string();
        let mut inner = Arc::unwrap_or_clone(self.0);
        inner.unread = Some(Arc::new(Unread { text, is_read: AtomicBool::new(false) }));
        Error(Arc::new(inner))
    }

    /// Marks the error as returned to the program.
    pub(crate) fn mark_read(&self) {
        if let Some(unread) = &self.0.unread {
            unread.is_read.store(true, Relaxed);
        }
    }

    /// Prepends `context` and a colon to the message.
    pub fn context(self, context: impl fmt::Display) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        inner.message = format!("{context}: {}", inner.message);
        Error(Arc::new(inner))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without the line and the help.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the user's source line, if known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// Returns advice for fixing the error, if there is any.
    pub fn help_text(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

/// Records the caller's line in an error. It is the last step of a public function that returns a `Result`.
pub(crate) trait AtCaller {
    #[track_caller]
    fn at_caller(self) -> Self;
}

impl<T> AtCaller for Result<T> {
    #[track_caller]
    fn at_caller(self) -> Self {
        let location = Location::caller();
        self.map_err(|e| e.at(location))
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Value => "value error",
            ErrorKind::Type => "type error",
            ErrorKind::Name => "name error",
            ErrorKind::Index => "index error",
            ErrorKind::Sharding => "sharding type error",
            ErrorKind::Indivisible => "indivisible error",
            ErrorKind::Deleted => "deleted array",
            ErrorKind::Leak => "leaked tracer",
            ErrorKind::NotImplemented => "not implemented",
            ErrorKind::Plugin => "plugin error",
            ErrorKind::Check => "check failed",
            ErrorKind::FloatingPoint => "floating point error",
            ErrorKind::Runtime => "runtime error",
            ErrorKind::DeadlineExceeded => "deadline exceeded",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        if let Some(at) = self.0.location {
            write!(f, "\n  at {}:{}:{}", at.file(), at.line(), at.column())?;
        }
        if let Some(help) = &self.0.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

/// Same as `Display`, because `fn main() -> Result<()>` prints errors with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<shardax_pjrt::Error> for Error {
    fn from(error: shardax_pjrt::Error) -> Self {
        let kind = match error.code {
            shardax_pjrt::Code::Unimplemented => ErrorKind::NotImplemented,
            shardax_pjrt::Code::NotFound | shardax_pjrt::Code::Unavailable => ErrorKind::Plugin,
            _ => ErrorKind::Runtime,
        };
        let message = Error::new(kind, error.to_string());
        match error.code {
            shardax_pjrt::Code::ResourceExhausted => message.help(
                "memory ran out: make batches smaller, shard large arrays over more devices, recompute with `checkpoint`, \
                 or donate arguments that are not needed afterwards",
            ),
            _ => message,
        }
    }
}

impl From<shardax_mpi::Error> for Error {
    fn from(error: shardax_mpi::Error) -> Self {
        use shardax_mpi::Kind;
        let kind = match error.kind {
            Kind::NoLibrary | Kind::WrongLibrary => ErrorKind::Plugin,
            Kind::InvalidArgument => ErrorKind::Value,
            Kind::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            Kind::FailedPrecondition | Kind::Failed | Kind::Mpi => ErrorKind::Runtime,
        };
        Error::new(kind, error.message)
    }
}

macro_rules! from_std_errors {
    ($($t:ty => $kind:ident $what:literal $help:literal;)*) => {$(
        #[doc = concat!($what, ": lets `?` convert it, and records the line of the `?`.")]
        impl From<$t> for Error {
            #[track_caller]
            fn from(error: $t) -> Self {
                Error::new(ErrorKind::$kind, format!("{}: {error}", $what)).help($help).at(Location::caller())
            }
        }
    )*};
}

from_std_errors! {
    std::io::Error => Runtime "input or output failed" "to name the file, add it: `fs::read(path).map_err(|e| Error::from(e).context(path))`";
    std::num::ParseIntError => Value "the text is not an integer" "`text.trim()` removes white space and line ends";
    std::num::ParseFloatError => Value "the text is not a number" "`text.trim()` removes white space and line ends";
    std::str::Utf8Error => Value "the bytes are not UTF-8" "`String::from_utf8_lossy` replaces what is not";
    std::string::FromUtf8Error => Value "the bytes are not UTF-8" "`String::from_utf8_lossy` replaces what is not";
}

/// `err!(Value, "message {x}")` makes an [`Error`].
macro_rules! err {
    ($kind:ident, $($arg:tt)*) => {
        $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($arg)*))
    };
}

/// `bail!(Value, "message {x}")` returns an [`Error`] from the enclosing function.
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::error::err!($kind, $($arg)*))
    };
}

pub(crate) use {bail, err};
