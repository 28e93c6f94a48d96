//! A local Colab for trying, testing and CI: the MCP endpoint in front of real Jupyter servers and kernels.
