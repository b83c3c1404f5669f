# For a processor alone; the live page is then at http://127.0.0.1:8765/
#   docker build -t scenemem . && docker run --rm -p 8765:8765 scenemem serve weights:ssm-plus-houses --host 0.0.0.0 --no-open
# For an NVIDIA card, with a data folder of yours; runs are written to ./runs
#   docker build -t scenemem-cuda --build-arg TORCH=https://pypi.org/simple .
#   docker run --rm --gpus all -v "$PWD/data:/data" -v "$PWD/runs:/work/runs" scenemem-cuda train ssm --data /data --features captions --device cuda --out runs/ssm-0
FROM python:3.12-slim
# the index of torch: wheels on PyPI bring CUDA along; https://download.pytorch.org/whl/cu126 is for older drivers
ARG TORCH=https://download.pytorch.org/whl/cpu
WORKDIR /scenemem
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
        --extra-index-url "$TORCH" '.[serve,speak,features]' \
    && scenemem --version \
    && mkdir -m 777 /cache /work
ENV SCENEMEM_CACHE=/cache NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
VOLUME ["/cache", "/data"]
EXPOSE 8765
ENTRYPOINT ["scenemem"]
CMD ["--help"]
