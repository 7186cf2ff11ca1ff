"""The energy counter of NVIDIA GPUs, read through the driver's NVML library."""

import ctypes
from typing import Any

_MILLI = 1e-3


class NvmlCounter:
    """The sum over all GPUs. Raises OSError if there is no driver or a GPU has no energy counter.

    library: used instead of the driver's, for tests.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        self._check(self._library.nvmlInit_v2())
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self._devices = [self._device(index) for index in range(count.value)]
        self.what = "GPU" if len(self._devices) == 1 else f"{len(self._devices)} GPUs"
        self.joules()

    def joules(self) -> float:
        """Return the joules since the driver was loaded. Raises OSError."""
        total_mj = 0
        for device in self._devices:
            counted = ctypes.c_ulonglong()
            self._check(self._library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(counted)))
            total_mj += counted.value
        return total_mj * _MILLI

    def close(self) -> None:
        """Shut the library down."""
        self._library.nvmlShutdown()

    def _device(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
        return device

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"NVML returned error {status}")
