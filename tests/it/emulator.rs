//! The emulator against raw MCP requests.
