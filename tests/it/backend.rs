//! The Colab backend against a scripted MCP server.
