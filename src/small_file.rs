//! Files that an option names: secrets, certificates, templates. Only a regular file of a bounded size is read, through
//! one open file, so that neither a pipe, a device nor a huge file stops the process or fills its memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The largest file with a secret or a template, in bytes.
pub const MAX_SECRET: u64 = 64 * 1024;
/// The largest file of certificates, in bytes: the authorities of a system take some 200 KiB.
pub const MAX_PEM: u64 = 1 << 20;

/// The content and the mode of a file.
pub struct SmallFile {
    pub bytes: Vec<u8>,
    /// The permissions of the file.
    pub mode: u32,
}

/// Reads certificates or a key.
///
/// # Errors
/// The errors of [`SmallFile::read`].
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    Ok(SmallFile::read(path, MAX_PEM)?.bytes)
}

impl SmallFile {
    /// # Errors
    /// The file cannot be opened, is not a regular file, or has more bytes than `limit`.
    pub fn read(path: &Path, limit: u64) -> io::Result<SmallFile> {
        // Without this flag, opening a named pipe waits for a writer.
        let flag = rustix::fs::OFlags::NONBLOCK.bits();
        let file: File = OpenOptions::new().read(true).custom_flags(flag.cast_signed()).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other("it is no regular file, but a folder, a pipe or a device"));
        }
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it has more than {limit} bytes; is it the right file?")));
        }
        Ok(SmallFile { bytes, mode: about.permissions().mode() })
    }

    /// The secret in it, without the white space around it, because editors end files with a newline.
    ///
    /// # Errors
    /// It is no text, or empty.
    pub fn into_secret(self) -> io::Result<String> {
        let text = String::from_utf8(self.bytes).map_err(|_| io::Error::other("it is no text in UTF-8"))?;
        match text.trim() {
            "" => Err(io::Error::other("it is empty; write the secret into it")),
            secret => Ok(secret.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_size_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("secret"), "s3cret\n").unwrap();
        std::fs::write(at("long"), vec![b'x'; MAX_SECRET as usize + 1]).unwrap();
        std::os::unix::fs::symlink(at("secret"), at("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        assert_eq!(SmallFile::read(&at("link"), MAX_SECRET).unwrap().bytes, b"s3cret\n");
        for (path, expected) in [
            (at("long"), "more than 65536 bytes"),
            (at("pipe"), "no regular file"),
            (folder.path().to_owned(), "no regular file"),
            (Path::new("/dev/zero").to_owned(), "no regular file"),
            (at("absent"), "No such file"),
        ] {
            let why = SmallFile::read(&path, MAX_SECRET).err().unwrap().to_string();
            assert!(why.contains(expected), "{}: {why}", path.display());
        }
    }
}
