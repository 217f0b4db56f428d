//! Pairs as a table, for other programs: CSV with hexadecimal text, which can be loaded again, and Parquet with bytes.
//! Rows are ordered by namespace and key. Roots, blob and history are not in a table, and neither is which namespaces are plain.

use std::io::{self, BufRead, Write};

use pleach::internals::hexadecimal::{from_hex, hex};
use pleach::load::LoadOptions;
use pleach::{Db, Key, Roots, Value};
use pleach_ops::export::{ExportReport, StreamError};

use crate::error::{CliError, ErrorKind, Result};

/// First line of a table in CSV.
const HEADER: &str = "namespace,key,value";
/// Bytes of a line beyond those of the longest value (64 MiB).
const LONGEST_LINE: u64 = (128 << 20) + 256;

/// Where rows go.
pub(crate) trait Table {
    fn row(&mut self, namespace: u8, key: &Key, value: &[u8]) -> io::Result<()>;
    /// Writes what is left. Returns the bytes of the table.
    fn end(self) -> io::Result<u64>;
}

/// Writes all pairs of the newest commit; `tell` is called for each key.
pub(crate) fn export(
    db: &Db,
    mut table: impl Table,
    mut tell: impl FnMut(&Key),
) -> pleach_ops::Result<ExportReport> {
    let failed = |error: io::Error| StreamError::Write(error.to_string());
    let session = db.snapshot()?;
    let mut report = ExportReport::default();
    report.commit = session.commit_number();
    for (namespace, _) in session.roots().all() {
        for pair in session.namespace(namespace)?.iter(..) {
            let (key, value) = pair?;
            table.row(namespace, &key, &value).map_err(failed)?;
            report.pairs += 1;
            tell(&key);
        }
        report.namespaces += 1;
    }
    report.bytes = table.end().map_err(failed)?;
    Ok(report)
}

/// A table in CSV.
pub(crate) struct Csv<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Csv<W> {
    pub(crate) fn new(to: W) -> io::Result<Self> {
        let mut table = Self { to, bytes: 0 };
        table.line(HEADER)?;
        Ok(table)
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        self.bytes += line.len() as u64 + 1;
        writeln!(self.to, "{line}")
    }
}

impl<W: Write> Table for Csv<W> {
    fn row(&mut self, namespace: u8, key: &Key, value: &[u8]) -> io::Result<()> {
        self.line(&format!("{namespace},{},{}", hex(key), hex(value)))
    }

    fn end(mut self) -> io::Result<u64> {
        self.to.flush()?;
        Ok(self.bytes)
    }
}

struct Row {
    namespace: u8,
    key: Key,
    value: Value,
}

/// The rows of a table in CSV, with the number of the line in errors.
pub(crate) struct Rows<R> {
    from: R,
    name: String,
    line: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Rows<R> {
    /// Reads the header. `name` is what errors call the file.
    pub(crate) fn new(from: R, name: String) -> Result<Self> {
        let mut rows = Self { from, name, line: 0, text: Vec::new() };
        match rows.next_line()? {
            Some(header) if header == HEADER => Ok(rows),
            _ => Err(rows.wrong(&format!("the header is not {HEADER}"))),
        }
    }

    fn wrong(&self, what: &str) -> CliError {
        let text = format!("{}, line {}: {what}", self.name, self.line);
        CliError::new(ErrorKind::Damaged, text)
    }

    /// The next line without its end.
    fn next_line(&mut self) -> Result<Option<String>> {
        self.text.clear();
        self.line += 1;
        let read = io::Read::take(&mut self.from, LONGEST_LINE).read_until(b'\n', &mut self.text);
        read.map_err(|error| CliError::new(ErrorKind::System, format!("{}: {error}", self.name)))?;
        if self.text.is_empty() {
            return Ok(None);
        }
        let Some(line) = self.text.strip_suffix(b"\n") else {
            return Err(self.wrong("the file is cut off, or the line is longer than any value"));
        };
        let line = core::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line));
        Ok(Some(line.map_err(|_| self.wrong("it is no text"))?.to_owned()))
    }

    fn next_row(&mut self) -> Result<Option<Row>> {
        let Some(line) = self.next_line()? else { return Ok(None) };
        let fields: Vec<_> = line.split(',').collect();
        let [namespace, key, value] = fields[..] else {
            return Err(self.wrong(&format!("it has {} fields, not 3", fields.len())));
        };
        let namespace =
            namespace.parse().map_err(|_| self.wrong("the namespace is no number up to 255"))?;
        let key = from_hex(key).and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| self.wrong("the key has not 64 hexadecimal digits"))?;
        let value = from_hex(value).map(Value::from);
        let value =
            value.ok_or_else(|| self.wrong("the value has other than hexadecimal digits"))?;
        Ok(Some(Row { namespace, key, value }))
    }
}

/// Why a load of rows ended.
pub(crate) enum LoadError {
    Row(CliError),
    Db(pleach::Error),
}

impl From<pleach::Error> for LoadError {
    fn from(error: pleach::Error) -> Self {
        Self::Db(error)
    }
}

impl From<CliError> for LoadError {
    fn from(error: CliError) -> Self {
        Self::Row(error)
    }
}

/// The result of an import.
pub(crate) struct Loaded {
    pub(crate) commit: u64,
    pub(crate) namespaces: u64,
    pub(crate) pairs: u64,
    pub(crate) roots: Roots,
}

/// Loads all rows into a new database, with so many MiB for a load: those of a namespace stand together, in any order of
/// their keys.
pub(crate) fn import(
    db: &Db,
    mut rows: Rows<impl BufRead>,
    plain: &[u8],
    memory_mib: u64,
) -> core::result::Result<Loaded, LoadError> {
    let (mut seen, mut pairs) = (Vec::new(), 0);
    let mut next = rows.next_row()?;
    while let Some(number) = next.as_ref().map(|row| row.namespace) {
        if seen.contains(&number) {
            let text = format!("rows of namespace {number} came before: they stand together");
            return Err(rows.wrong(&text).into());
        }
        match number {
            0 => {}
            _ if plain.contains(&number) => drop(db.add_plain_namespace(number)?),
            _ => drop(db.add_namespace(number)?),
        }
        let of_namespace = std::iter::from_fn(|| {
            let row = next.take_if(|row| row.namespace == number)?;
            let read = rows.next_row().map(|row| next = row);
            Some(read.map(|()| (row.key, row.value)).map_err(LoadError::Row))
        });
        let options = LoadOptions::new().memory_mib(memory_mib).namespace(number);
        pairs += db.try_bulk_load(of_namespace, &options)?.accounts;
        seen.push(number);
    }
    let namespaces = seen.len() as u64;
    Ok(Loaded { commit: db.commit_number(), namespaces, pairs, roots: db.roots() })
}

#[cfg(feature = "parquet")]
pub(crate) use self::columns::Parquet;

#[cfg(feature = "parquet")]
mod columns {
    use std::io::{self, Write};
    use std::mem::take;
    use std::sync::Arc;

    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::{ByteArray, FixedLenByteArray};
    use parquet::errors::ParquetError;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use pleach::Key;

    use super::Table;

    const SCHEMA: &str = "message pairs {
        required int32 namespace (INTEGER(8, false));
        required fixed_len_byte_array(32) key;
        required binary value;
    }";
    /// Rows of a group, and bytes of its values.
    const ROWS: usize = 1 << 16;
    const BYTES: usize = 64 << 20;

    /// A table in Parquet: groups of rows, uncompressed.
    pub(crate) struct Parquet<W: Write + Send> {
        writer: SerializedFileWriter<W>,
        namespaces: Vec<i32>,
        keys: Vec<FixedLenByteArray>,
        values: Vec<ByteArray>,
        /// Bytes of the values.
        bytes: usize,
    }

    fn failed(error: ParquetError) -> io::Error {
        match error {
            ParquetError::External(error) => io::Error::other(error),
            error => io::Error::other(error),
        }
    }

    impl<W: Write + Send> Parquet<W> {
        pub(crate) fn new(to: W) -> io::Result<Self> {
            let schema = Arc::new(parse_message_type(SCHEMA).map_err(failed)?);
            // Keys and values are hashes and numbers: they repeat too seldom.
            let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
            let writer =
                SerializedFileWriter::new(to, schema, Arc::new(properties)).map_err(failed)?;
            let (keys, values) = (Vec::new(), Vec::new());
            Ok(Self { writer, namespaces: Vec::new(), keys, values, bytes: 0 })
        }

        fn end_group(&mut self) -> Result<(), ParquetError> {
            let (namespaces, keys, values) =
                (take(&mut self.namespaces), take(&mut self.keys), take(&mut self.values));
            self.bytes = 0;
            let mut group = self.writer.next_row_group()?;
            while let Some(mut column) = group.next_column()? {
                match column.untyped() {
                    ColumnWriter::Int32ColumnWriter(to) => {
                        to.write_batch(&namespaces, None, None)?
                    }
                    ColumnWriter::FixedLenByteArrayColumnWriter(to) => {
                        to.write_batch(&keys, None, None)?
                    }
                    ColumnWriter::ByteArrayColumnWriter(to) => {
                        to.write_batch(&values, None, None)?
                    }
                    _ => return Err(ParquetError::General("a column of another type".to_owned())),
                };
                column.close()?;
            }
            group.close()?;
            Ok(())
        }
    }

    impl<W: Write + Send> Table for Parquet<W> {
        fn row(&mut self, namespace: u8, key: &Key, value: &[u8]) -> io::Result<()> {
            self.namespaces.push(namespace.into());
            self.keys.push(key.to_vec().into());
            self.values.push(value.to_vec().into());
            self.bytes += value.len();
            if self.keys.len() == ROWS || self.bytes > BYTES {
                self.end_group().map_err(failed)?;
            }
            Ok(())
        }

        fn end(mut self) -> io::Result<u64> {
            if !self.keys.is_empty() {
                self.end_group().map_err(failed)?;
            }
            self.writer.finish().map_err(failed)?;
            Ok(self.writer.bytes_written() as u64)
        }
    }
}
