//! The store as a program, for tests in other languages: `zagros-fake-s3 BUCKET`. It prints the environment variables with
//! which a process uses it, `NAME=VALUE` by line and then an empty line, and ends when its standard input closes.

use std::io::{Read, Write};

use zagros_fakes::s3::FakeS3;

fn main() -> std::io::Result<()> {
    let bucket = std::env::args().nth(1).ok_or_else(|| std::io::Error::other("usage: zagros-fake-s3 BUCKET"))?;
    let store = FakeS3::start(&bucket);
    let mut out = std::io::stdout();
    for (name, value) in store.environment_variables() {
        writeln!(out, "{name}={value}")?;
    }
    writeln!(out)?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
