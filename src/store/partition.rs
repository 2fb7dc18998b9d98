//! The partition of a unit or a group. The rule never changes: every instance, and every program that reads the
//! keys, has to agree on it.

use crate::presence::Unit;

/// The partition that holds a unit: CRC-16/XMODEM of `<kind>:<unit>`, modulo their number.
pub fn partition_of(unit: &Unit, partitions: u16) -> u16 {
    crc16(name_bytes(unit)) % partitions.max(1)
}

/// The partition that holds a group, as if its key were the name of a unit.
pub fn partition_of_group(key: &str, partitions: u16) -> u16 {
    crc16(key.bytes()) % partitions.max(1)
}

pub fn name_bytes(unit: &Unit) -> impl Iterator<Item = u8> + '_ {
    unit.kind.as_str().bytes().chain([b':']).chain(unit.id.as_str().bytes())
}

pub fn crc16(bytes: impl Iterator<Item = u8>) -> u16 {
    bytes.fold(0u16, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
