//! The log files of the VMs' consoles: what a VM writes, bounded in size.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// A log that reaches so many bytes is renamed to `NAME.log.old`, and a new one begun.
const LOG_MAX: u64 = 32 << 20;

/// A VM's console log in a directory of them.
pub fn path(directory: &Path, vm: &str) -> PathBuf {
    directory.join(format!("{vm}.log"))
}

/// Writes one log.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    written: u64,
}

impl Writer {
    /// Begins or goes on with a log.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let written = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            written,
        })
    }

    /// Adds what the VM wrote.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written >= LOG_MAX {
            fs::rename(&self.path, self.path.with_extension("log.old"))?;
            *self = Self::open(self.path.clone())?;
        }
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

/// Follows one log, over renames.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<File>,
}

impl Reader {
    /// Begins at most `last` bytes before the log's end. The log need not be there yet.
    pub fn open(path: PathBuf, last: u64) -> Self {
        let mut reader = Self {
            file: File::open(&path).ok(),
            path,
        };
        if let Some(file) = &mut reader.file {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(last)));
        }
        reader
    }

    /// The next bytes, at most as many as `buffer` holds; 0 where there are none yet.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = &mut self.file {
                let n = file.read(buffer)?;
                if n > 0 {
                    return Ok(n);
                }
            }
            let Ok(new) = File::open(&self.path) else {
                return Ok(0);
            };
            let inode = |file: &File| file.metadata().map(|metadata| metadata.ino()).ok();
            if self.file.as_ref().and_then(inode) == inode(&new) {
                return Ok(0);
            }
            self.file = Some(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_follows_over_a_rename_and_misses_nothing() {
        let directory = std::env::temp_dir().join(format!("underpin-log-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = path(&directory, "vm");
        let mut reader = Reader::open(path.clone(), 3);
        let mut buffer = [0; 64];
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        let mut writer = Writer::open(path.clone()).unwrap();
        writer.write(b"one").unwrap();
        assert_eq!(reader.read(&mut buffer).unwrap(), 3);
        writer.write(b"two").unwrap();
        writer.written = LOG_MAX;
        writer.write(b"three").unwrap();
        assert_eq!(reader.read(&mut buffer).unwrap(), 3);
        assert_eq!(reader.read(&mut buffer).unwrap(), 5);
        assert_eq!(&buffer[..5], b"three");
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        let mut last = Reader::open(path, 2);
        assert_eq!(last.read(&mut buffer).unwrap(), 2);
        assert_eq!(&buffer[..2], b"ee");
        fs::remove_dir_all(directory).unwrap();
    }
}
