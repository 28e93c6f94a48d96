//! The MCP client against foreign servers.
