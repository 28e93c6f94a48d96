"""The real jupyter_kernel_gateway, which tells its port in a file once it listens; it takes its arguments as usual."""

import json
import os
import sys

from kernel_gateway.gatewayapp import KernelGatewayApp


class Gateway(KernelGatewayApp):
    def init_http_server(self):
        super().init_http_server()
        # With port 0 the application does not know its port.
        sockets = list(self.http_server._sockets.values())
        place = os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "gateway-port.json")
        with open(place, "w") as file:
            json.dump({"port": sockets[0].getsockname()[1]}, file)


sys.argv[0] = "jupyter-kernelgateway"
Gateway.launch_instance()
